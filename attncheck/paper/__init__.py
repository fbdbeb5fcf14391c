"""The paper's published experiments at full size, beside exact values."""
