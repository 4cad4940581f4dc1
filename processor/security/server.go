package security

import "crypto/tls"

// ServerCertificates is a server's TLS configuration, made from files that are read again
// while it is in use. A new connection gets the current one; open connections keep theirs.
type ServerCertificates struct {
	Reloaded[*Certificates]
	// ClientAuth says whether clients send a certificate. Without it the authorities of the
	// files are not used.
	ClientAuth tls.ClientAuthType
}

// Config returns the configuration for a listener. Start comes before it.
func (c *ServerCertificates) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: c.ClientAuth != tls.NoClientCert,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			files, _ := c.Current()
			return c.configFor(files), nil
		},
	}
}

// configFor returns the configuration for a new connection.
func (c *ServerCertificates) configFor(files *Certificates) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*files.Pair}, NextProtos: []string{"h2", "http/1.1"}}
	if c.ClientAuth != tls.NoClientCert {
		config.ClientCAs, config.ClientAuth = files.Pool, c.ClientAuth
		// A resumed session was verified against the authorities of its time.
		config.SessionTicketsDisabled = true
	}
	return config
}
