"""Pure functions of arrays: the engines, the named mechanisms and the routes."""
