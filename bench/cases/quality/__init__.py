"""`bench quality`: tenants' models beside dedicated copies, on labelled data that the user gives."""
