"""Networks without their heads, one file each."""
