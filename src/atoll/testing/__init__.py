"""What you need to test parts of your own: strategies and conformance laws."""
