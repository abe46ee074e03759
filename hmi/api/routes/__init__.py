"""The route table, the only list of the server's calls, and the OpenAPI document made from it."""
