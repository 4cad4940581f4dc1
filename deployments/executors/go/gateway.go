package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"time"
)

// gateway is the other system: it charges cards.
type gateway struct {
	url string
	// ask says that it knows no idempotency keys, so that it is asked for an earlier charge.
	ask      bool
	client   *http.Client
	stopping <-chan struct{} // the process stops
}

// newGateway returns nil without EXECUTOR_GATEWAY.
func newGateway(stopping <-chan struct{}) *gateway {
	address := os.Getenv("EXECUTOR_GATEWAY")
	if address == "" {
		return nil
	}
	return &gateway{url: address + "/charges", ask: os.Getenv("EXECUTOR_GATEWAY_ASK") == "true", client: &http.Client{Timeout: 30 * time.Second}, stopping: stopping}
}

type charge struct {
	Reference string `json:"reference"`
	Account   string `json:"account"`
	Amount    int    `json:"amount"`
}

// gatewayLimit is how long a request without an answer may take to have its effect.
const gatewayLimit = 2 * time.Second

// charge charges once. The error wraps context.Canceled if ctx ended before, or if the process stops
// without an answer. The gateway answers a request whose Idempotency-Key it
// has seen as it did before. One without such keys is asked first for a charge with the reference: an
// earlier request may have had its effect, although its answer was lost; unsure says so.
func (g *gateway) charge(ctx context.Context, c charge, unsure bool) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	for ; ; unsure = true {
		if unsure {
			select {
			case <-time.After(gatewayLimit):
			case <-ctx.Done():
				return ctx.Err()
			case <-g.stopping:
				return context.Canceled
			}
		}
		charged, err := false, error(nil)
		if g.ask {
			charged, err = g.send(ctx, http.MethodGet, g.url+"?reference="+url.QueryEscape(c.Reference), "", nil)
		}
		if err == nil && !charged {
			charged, err = g.send(ctx, http.MethodPost, g.url, c.Reference, body)
		}
		if charged || errors.Is(err, errRejected) {
			return err
		}
		slog.Warn("no answer of the gateway, asking again", "error", err)
	}
}

// send returns whether the gateway has a charge: false where it was asked, and knows none. An error other
// than errRejected says nothing about that.
func (g *gateway) send(ctx context.Context, method, address, key string, body []byte) (charged bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	answer, err := g.client.Do(request)
	if err != nil {
		return false, err
	}
	status := answer.StatusCode
	switch err := answer.Body.Close(); {
	case status < http.StatusMultipleChoices:
		return true, nil
	case status == http.StatusNotFound && method == http.MethodGet:
		return false, nil
	case status == http.StatusRequestTimeout || status == http.StatusConflict || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return false, errors.Join(fmt.Errorf("the gateway answers %d", status), err)
	}
	return false, fmt.Errorf("%w: the gateway answers %d", errRejected, status)
}
