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
	"strconv"
	"strings"
	"time"
)

// gateway is the other system: it charges cards.
type gateway struct {
	url string
	// ask says that it knows no idempotency keys, so that it is asked for an earlier charge.
	ask bool
	// limit is how long a request without an answer may take to have its effect.
	limit    time.Duration
	client   *http.Client
	stopping <-chan struct{} // the process stops
}

// newGateway returns nil without EXECUTOR_GATEWAY.
func newGateway(stopping <-chan struct{}) *gateway {
	address := os.Getenv("EXECUTOR_GATEWAY")
	if address == "" {
		return nil
	}
	g := &gateway{url: strings.TrimRight(address, "/") + "/charges", ask: os.Getenv("EXECUTOR_GATEWAY_ASK") == "true", limit: time.Minute, stopping: stopping}
	if ms, err := strconv.Atoi(os.Getenv("EXECUTOR_GATEWAY_LIMIT_MS")); err == nil {
		g.limit = time.Duration(ms) * time.Millisecond
	}
	// No redirect is followed: a POST would become a GET.
	g.client = &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return g
}

type charge struct {
	Reference string `json:"reference"`
	Account   string `json:"account"`
	Amount    int    `json:"amount"`
}

// gatewayPause is the time between two requests.
const gatewayPause = 2 * time.Second

// errStopping says that the process stops.
var errStopping = errors.New("the process stops")

// charge charges once. The error is that of ctx if it ended before, or errStopping. The gateway answers a
// request whose Idempotency-Key it has seen as it did before. One without such keys is asked first for a
// charge with the reference: an earlier request may have had its effect, although its answer was lost;
// unsure says so.
func (g *gateway) charge(ctx context.Context, c charge, unsure bool) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	pause := gatewayPause
	if g.ask {
		pause = g.limit
	}
	for ; ; unsure = true {
		if unsure {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			case <-g.stopping:
				return errStopping
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
	if key != "" && !g.ask { // else net/http itself sends the request again
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
	case method == http.MethodPost && (status == http.StatusBadRequest || status == http.StatusPaymentRequired || status == http.StatusUnprocessableEntity):
		return false, fmt.Errorf("%w: the gateway answers %d", errRejected, status)
	default: // it says nothing of the charge: wrong credentials, for example
		return false, errors.Join(fmt.Errorf("the gateway answers %d", status), err)
	}
}
