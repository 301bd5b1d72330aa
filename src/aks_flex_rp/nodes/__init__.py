"""Operations on flex nodes: create, update, read, report status, join, delete."""
