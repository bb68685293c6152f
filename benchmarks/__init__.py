"""Speed on a real GPU: medians and spread, beside peers and the physical floor, in one run."""
