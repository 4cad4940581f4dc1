// Package security makes the options that all Kafka clients of a process share: TLS, SASL and tokens. It also
// removes secrets from logs and errors.
//
// # What it owns
//
//   - Config, TLS and SASL are the settings; Validate reports all mistakes together.
//   - Secret prints as *** with every verb and encoding. Redactor replaces secrets in the log lines and errors
//     of libraries, brokers and token endpoints.
//   - Reloaded loads files again while their content is in use. If a load fails, the last valid content stays
//     in use.
//   - ClientMetrics counts requests, batches and bytes of one kind of clients.
//
// It may import package kafka. Its outside systems are franz-go, HTTP for the token endpoint, files and
// metrics.
//
// # What looks wrong
//
//   - No setting turns off the verification of the broker's certificate.
//   - If a broker rejects the credentials of a running process, the process retries for minutes: an operator
//     cannot change the broker and the files at the same moment.
//   - A process also retries after a broker has closed a connection without a message, because a starting
//     broker closes connections in this way.
//   - The token request is our own code: golang.org/x/oauth2 reads JSON that is declared as text/plain as a
//     form, and rejects a fractional lifetime.
package security
