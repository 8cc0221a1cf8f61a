"""Object storage: addresses such as s3://bucket/a.mp4, conditional writes, and files read by ranges."""
