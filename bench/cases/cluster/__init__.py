"""`bench cluster`: HMI beside Ray Serve, as the host of many tenants' models and as what is in front of HMI."""
