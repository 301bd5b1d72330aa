"""What on the machine is no longer as it was made: seen, told, brought back, and left alone where others insist."""
