"""This program goes from labelled rows to answers. Open it in an editor that knows cells (`# %%`), or run it
as a program.

It needs a running server with a root (`hmi serve`). HMI_URL names the server, HMI_KEY a key that may manage.
"""

# %% Connect. A server on this machine needs no key as long as it has no administrator's key.
import os

import hmi

TENANT = os.environ.get("HMI_TENANT", "acme")
DOMAIN = os.environ.get("HMI_DOMAIN", "minilm")
MODEL = f"{TENANT}.quickstart"

client = hmi.Client()

# %% Rows. A list of mappings, a data frame, or the path of a file in JSON lines or CSV.
TEXTS = {
    "delivery": [
        "where is my parcel",
        "the parcel has not come",
        "when will it be delivered",
        "the courier was not here",
        "track my order please",
        "my delivery is late again",
    ],
    "refund": [
        "i want my money back",
        "please refund the order",
        "the refund is missing",
        "you charged me twice",
        "return this and pay me back",
        "how long does a refund take",
    ],
}
rows = [{"text": text, "label": label} for label, texts in TEXTS.items() for text in texts]

# %% Train. A bar shows the job's progress; the model answers when it ends.
if TENANT not in {tenant.tenant for tenant in client.tenants.list()}:
    key = client.tenants.create(TENANT).key
    print(f"{TENANT}'s key, shown only once: {key}")
job = client.models.create(MODEL, rows, domain=DOMAIN, task="classification", options={"epochs": 5})
job.wait()
model = client.models.get(MODEL)
print(
    f"{model.model}, version {model.current}: labels {', '.join(model.labels)}; {model.bytes / 1000:.0f} kB"
)

# %% Ask: one text gives one answer, a list gives a list. Long lists become several calls by themselves.
print(client.infer(MODEL, "has the courier been here?").label)
for text, found in zip(texts := ["pay me back", "where is it"], client.infer(MODEL, texts), strict=True):
    print(f"{text!r}: {found.label} ({found.score:.2f})")

# %% Errors have a kind, a message that says what to do, and the id of the request.
try:
    client.infer(f"{TENANT}.nobody", "hello")
except hmi.ApiError as error:
    print(f"{error.kind}: {error.message}")

# %% Clean up.
client.models.delete(MODEL)
client.close()
