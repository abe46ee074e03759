"""What a tenant's model is worth beside a model of its own, on labelled data that a user names."""
