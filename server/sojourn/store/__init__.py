"""Where everything is kept: one store, one order of commits."""
