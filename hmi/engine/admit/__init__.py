"""From a request to a place in the queue: the model is found or loaded, the text checked and tokenised."""
