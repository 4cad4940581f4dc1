// Package security makes the options that all Kafka clients share: TLS, SASL
// and tokens. It also removes secrets from logs and errors.
//
// # What it owns
//
//   - Config, TLS and SASL are the settings; Validate reports all mistakes at once.
//   - Secret prints as *** with every verb and encoding. Redactor replaces the
//     secrets in log lines and errors of libraries, brokers and token endpoints.
//   - Reloaded loads files again while their content is in use. If a load fails,
//     the last valid content stays in use.
//   - ClientMetrics counts requests, batches and bytes of one kind of clients.
//
// It may import package kafka. Its outside systems are franz-go, HTTP for the
// token endpoint, files and metrics.
//
// # What looks wrong
//
//   - No setting turns off the verification of the broker's certificate.
//   - A running process retries for minutes with credentials that the broker
//     rejects, because broker and files do not change at the same moment.
//   - It also retries after a connection that closes without a message, because
//     a starting broker closes connections so.
//   - The token request is ours: golang.org/x/oauth2 reads JSON that is declared
//     as text/plain as a form, and rejects a fractional lifetime.
package security
