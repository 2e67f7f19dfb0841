"""What an author signs of its whole history: the root of a Merkle tree (`merkle`), in a signed text (`notes`)."""
