"""`make bench`: Winch and its peers on identical work, on one machine, in one run."""
