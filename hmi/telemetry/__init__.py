"""Log lines and spans, which tell a server's operator, beside the metrics, what each request did."""
