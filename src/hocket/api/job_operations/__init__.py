"""Operations on jobs that are more than reading one: submitting, following, filtering, and changing many."""
