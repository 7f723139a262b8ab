"""Networks, action distributions, initial values and normalisation."""
