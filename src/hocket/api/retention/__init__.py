"""Operations on what the log keeps: rules of the owner, and pruning by them."""
