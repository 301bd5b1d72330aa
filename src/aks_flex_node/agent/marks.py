"""What files bear that are ours, so that they are known without any record of them."""

MARK = "Written by aks-flex-node; it writes this file again when it is changed by hand."
