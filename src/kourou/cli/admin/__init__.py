"""kourou admin: one module for each kind of thing; `commands` is the group of them, `run` how one is run."""
