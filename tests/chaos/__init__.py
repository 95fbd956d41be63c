"""Real processes under real faults, judged by a recorder of every acknowledged send; `make soak`."""
