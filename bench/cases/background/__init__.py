"""`bench background`: how much a background job, or tenants whose models write, slow a server's answers."""
