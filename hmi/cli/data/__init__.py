"""Commands about what models stand on: roots, domains, stores, files, jobs."""
