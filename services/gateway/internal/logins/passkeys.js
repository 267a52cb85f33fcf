'use strict'
// Has an authenticator create or use a passkey before a form is sent. The challenge of a vote
// is computed here, from what the form shows, so that the signature is over exactly that vote.
const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0))
async function options(form, button) {
  if (form.dataset.create) return navigator.credentials.create({ publicKey: PublicKeyCredential.parseCreationOptionsFromJSON(JSON.parse(form.dataset.create)) })
  const { ballot, domain, ids, rp_id: rpId } = JSON.parse(form.dataset.get)
  const vote = { ...ballot, reason: form.elements.reason.value, vote: button.value }
  form.elements.vote.value = vote.vote
  const text = domain + '\n' + JSON.stringify(vote, Object.keys(vote).sort())
  const challenge = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))
  return navigator.credentials.get({ publicKey: { challenge, rpId, userVerification: 'required', allowCredentials: ids.map((id) => ({ type: 'public-key', id: bytes(id) })) } })
}
for (const form of document.forms) {
  if (!form.dataset.create && !form.dataset.get) continue
  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    try {
      form.elements.credential.value = JSON.stringify(await options(form, event.submitter))
      form.submit()
    } catch (e) {
      form.querySelector('output').textContent = 'The device did not sign: ' + e.message
    }
  })
}
