"""How a conversation gets its next message. The only room that knows httpx."""
