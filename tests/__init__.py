"""The tests; a package, so that they share helpers as `tests.NAME`."""
