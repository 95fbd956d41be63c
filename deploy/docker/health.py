"""Ends with 0 if the address that it is given answers with 200, else with 1: slim images have no curl."""

import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4

try:
    with urllib.request.urlopen(sys.argv[1], timeout=TIMEOUT_S) as answer:
        print(answer.read().decode())
except urllib.error.HTTPError as error:
    sys.exit(f"{error.code} {error.read().decode()}")
except OSError as error:
    sys.exit(str(error))
