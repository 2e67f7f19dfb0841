"""What a coordinator with successors writes, and what it may say of that."""
