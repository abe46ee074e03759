// A new tenant and its first key, which is shown once.

import { send } from "./api.js";
import { announce, callout, command, field, fill, h, once } from "./dom.js";
import { session, trouble } from "./session.js";

export const NAME = "[a-z0-9][a-z0-9\\-]{0,62}";
export const NAME_RULE = "Lower-case letters (a-z), digits and hyphens, the first no hyphen.";

/** A field for a name that keeps the rule, which stands below it. */
export const nameInput = (more) => h("input", { type: "text", required: true, pattern: NAME, title: NAME_RULE, autocomplete: "off", spellcheck: "false", ...more });

/** Create a tenant. The server gives its key in this answer only. */
export const create = (tenant, signal) => send("POST", "/manage/tenants", { tenant }, signal);

/** The key of a tenant that was just created, to be copied. */
export function keyOnce({ tenant, key }) {
  return callout("warn", h("p", null, h("b", null, `Store the key of ${tenant} now.`), " It is shown only this once."),
    command(key), h("p", { class: "note" }, session.overview?.caller.keyless
      ? "Programs send it to ask and to teach this tenant's models. This page needs no key yet."
      : "With it, programs and people ask and teach this tenant's models."));
}

/** A form that creates a tenant, and shows its key once. */
export function newTenant() {
  const input = nameInput();
  const told = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "submit" }, "Create the tenant");
  return h("form", { onsubmit: (event) => {
    event.preventDefault();
    once(button, make);
  } }, field("Name of the tenant", input, `${NAME_RULE} Such as acme.`), h("div", null, button), told);

  async function make() {
    try {
      const made = await create(input.value.trim());
      fill(told, keyOnce(made));
      input.value = "";
      announce(`Tenant ${made.tenant} is created`);
    } catch (error) {
      fill(told, trouble(error));
    }
  }
}
