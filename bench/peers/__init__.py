"""Each peer as its documentation recommends it for throughput, with fsync on. None is tuned down."""
