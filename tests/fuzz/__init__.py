"""Fuzzing: frames, store files, expressions and configurations that are nearly right; `make fuzz`."""
