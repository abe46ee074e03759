"""Operations on the packed rows of a batch between layers."""
