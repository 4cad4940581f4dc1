// Package signature verifies who sent a request. It works on the raw body, before anything is parsed, so that
// an unsigned body reaches no decoder, no log and no Kafka topic.
//
// The package owns the signature schemes and their headers. It is pure: it imports the standard library and a
// JSON decoder, and reads no clock, file or environment.
//
// # Schemes
//
// StandardWebhooks: HMAC-SHA256 over webhook-id "." webhook-timestamp "." body;
// the key is the base64 part of a whsec_ secret. webhook-signature is a list of
// "v1," base64, separated by spaces; other versions (v1a is asymmetric) are
// ignored. Standard Webhooks 1.0.0, "Signature scheme" and "Verifying signatures":
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
//
// GitHub: X-Hub-Signature-256 is "sha256=" and the hexadecimal HMAC-SHA256 of
// the body. "Validating webhook deliveries":
// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
//
// Stripe: Stripe-Signature is "t=" seconds ",v1=" hex, with one v1 per secret during a rotation; the signature
// is the HMAC-SHA256 over t "." body. The key is the secret as Stripe shows it, including whsec_. The verifier
// ignores entries of other versions than v1, so that an attacker cannot downgrade to a weaker one.
// "Verify webhook signatures manually":
// https://docs.stripe.com/webhooks#verify-manually
//
// Slack: X-Slack-Signature is "v0=" and the hexadecimal HMAC-SHA256 of "v0:"
// X-Slack-Request-Timestamp ":" body. "Verifying requests from Slack":
// https://docs.slack.dev/authentication/verifying-requests-from-slack
//
// rules.Providers lists the rules of the other providers and the addresses of their documentation. Adyen's
// signature is in the body, so the verifier decodes that body before it has verified it. PayPal's certificate
// is part of the configured secret; the verifier never fetches it.
//
// HMAC: for other senders that sign the body, or the timestamp, a separator and the body, with HMAC (RFC 2104).
// Config describes the details.
//
// Token: a header or a parameter of the URL has the secret itself.
//
// Bearer: the header Authorization has "Bearer" and the secret itself (RFC 6750, section 2.1). The token proves
// that the sender knows the secret, and nothing about the body.
//
// None accepts every request.
//
// # Invariants
//
// Where the signature covers a timestamp (Config.timed), the request is valid from Config.Ahead before that
// time to Config.Tolerance after it. A replay after the tolerance is rejected as stale. A replay within it is
// genuine, like a retry of the sender, and becomes a duplicate if the window of the route is at least Ahead
// plus Tolerance. If twice the tolerance is longer than the window, the caller lowers Ahead.
//
// The other schemes sign no time: a captured request that is replayed after the window is a new event.
//
// A list of signatures is valid if one of them is right, whatever its other entries are.
//
// The verifier always refuses a repeated header, because two readers of the request could use different values;
// a truncated signature, because it is easier to guess; and an empty secret, because anyone can sign with it.
// CheckSecret also refuses a secret that is too short.
package signature
