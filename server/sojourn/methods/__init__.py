"""Every JSON-RPC method, one module per namespace; importing this package fills `METHODS`."""
