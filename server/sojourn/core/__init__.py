"""The sans-I/O core: values and rules. It never awaits, reads no clock and draws no random number."""
