"""One file an experiment: parse the flags, build, call the library."""
