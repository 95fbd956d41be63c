#!/bin/sh
# Prints the Python to make .venv with: $PYTHON if set, else the first of python3.11 and python3 that is
# new enough and can make virtual environments. A name on the PATH may still not run (version managers
# put placeholders there), so each is tried.
for python in ${PYTHON:-python3.11 python3}; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "Python 3.11 or later with venv is needed; tried: ${PYTHON:-python3.11 python3}." >&2
echo "Install it (Debian: apt-get install python3 python3-venv) or name one: make PYTHON=/path/to/python" >&2
exit 1
