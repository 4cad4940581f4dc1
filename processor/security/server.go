package security

import "crypto/tls"

// ServerCertificates is a server's TLS configuration, made from files that are read again while it is in use. A
// new connection gets the current configuration; open connections keep the older one.
type ServerCertificates struct {
	Reloaded[*Certificates]
	// ClientAuth says whether clients must send a certificate. With tls.NoClientCert, the authorities of the
	// files are not used.
	ClientAuth tls.ClientAuthType
}

// Config returns the configuration for a listener. Start must be called before it.
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
		// When a client resumes a TLS session, its certificate is not checked again, although the authorities
		// may have changed. So sessions cannot be resumed.
		config.SessionTicketsDisabled = true
	}
	return config
}
