"""The wire. The only room that imports pygls and lsprotocol."""
