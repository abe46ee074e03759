"""The parts that several cases use: data folders with many tenants, servers, senders of calls, and tables of
figures."""
