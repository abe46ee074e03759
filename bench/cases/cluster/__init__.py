"""`bench cluster`: HMI beside Ray Serve, as a host of models and as what is in front of HMI."""
