package top

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"oncebus/cmd/oncebus/page"
	"oncebus/processor/security"
)

const (
	// waitMin and waitMax bound the time between two attempts to connect to a process.
	waitMin, waitMax = 500 * time.Millisecond, 4 * time.Second
	// quietMax is how long a stream may send nothing before it counts as broken. A process sends a reading at
	// least every 10 s.
	quietMax = 15 * time.Second
	// snapshotMax is how long the request for one snapshot may take.
	snapshotMax = 10 * time.Second
	// eventBytesMax is the largest event of the stream, in bytes.
	eventBytesMax = 16 << 20
	// problemBytesMax is how many bytes of a refusal's text are shown.
	problemBytesMax = 500
)

// feed reads the figures of one process.
type feed struct {
	address string // such as http://127.0.0.1:8080
	client  *http.Client
	token   func() (string, error) // returns "" if there is no token
}

// newClient returns the HTTP client of all feeds. TLS uses the authorities of the system unless the user names
// a file, and the client certificate if the user names one.
func newClient(ca, cert, key string) (*http.Client, error) {
	files, err := security.LoadCertificates(security.File{Variable: "--cert-file", Path: cert}, security.File{Variable: "--key-file", Path: key}, security.File{Variable: "--ca-file", Path: ca})
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: files.Pool}
	if files.Pair != nil {
		config.Certificates = []tls.Certificate{*files.Pair}
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true}}, nil
}

// get requests a path. If the process refuses the request, the error quotes what the process responded.
func (f *feed) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.address+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(resp.Body, problemBytesMax))
	if resp.StatusCode == http.StatusNotFound {
		text = []byte("it has no live page: ONCEBUS_ADMIN_PAGE may be false, or it is an earlier build")
	}
	if err != nil {
		return nil, fmt.Errorf("%s%s: %s, %w", f.address, path, resp.Status, err)
	}
	return nil, fmt.Errorf("%s%s: %s: %s", f.address, path, resp.Status, bytes.TrimSpace(text))
}

// once reads one snapshot. It returns the text that the process sent, and the snapshot decoded from it.
func (f *feed) once(ctx context.Context) (text []byte, s *page.Snapshot, err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotMax)
	defer cancel()
	body, err := f.get(ctx, page.PathSnapshot)
	if err != nil {
		return nil, nil, err
	}
	defer body.Close() //nolint:errcheck // it was only read
	if text, err = io.ReadAll(body); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", f.address, err)
	}
	s = new(page.Snapshot)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, nil, fmt.Errorf("%s does not send figures: %w", f.address, err)
	}
	return bytes.TrimSpace(text), s, nil
}

// follow passes each snapshot to shown and each error to lost. After an error it connects again, until ctx is
// done.
func (f *feed) follow(ctx context.Context, shown func(*page.Snapshot), lost func(error)) {
	for wait := waitMin; ctx.Err() == nil; wait = min(2*wait, waitMax) {
		err := f.stream(ctx, func(s *page.Snapshot) {
			wait = waitMin
			shown(s)
		})
		if ctx.Err() != nil {
			return
		}
		lost(err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// stream reads a single stream to its end.
func (f *feed) stream(ctx context.Context, shown func(*page.Snapshot)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(quietMax, func() { cancel(fmt.Errorf("%s sent nothing for %v", f.address, quietMax)) })
	defer quiet.Stop()
	body, err := f.get(ctx, page.PathStream)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // it was only read
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, eventBytesMax)
	for name := ""; lines.Scan(); {
		quiet.Reset(quietMax)
		line := lines.Text()
		if event, ok := strings.CutPrefix(line, "event: "); ok {
			name = event
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || name != "snapshot" {
			continue
		}
		s := new(page.Snapshot)
		if err := json.Unmarshal([]byte(data), s); err != nil {
			return fmt.Errorf("%s does not send figures: %w", f.address, err)
		}
		shown(s)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", f.address, err)
	}
	return fmt.Errorf("%s ended the stream", f.address)
}
