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

// gateway is the client of the other system, which charges cards.
type gateway struct {
	url string
	// ask says that the gateway does not accept idempotency keys, so the executor asks it for an earlier charge
	// first.
	ask bool
	// limit is how long a request whose answer did not arrive may take until it has its effect.
	limit    time.Duration
	client   *http.Client
	stopping <-chan struct{} // closed when the process is to stop
}

// newGateway returns the gateway of EXECUTOR_GATEWAY; nil if the variable is not set.
func newGateway(stopping <-chan struct{}) *gateway {
	address := os.Getenv("EXECUTOR_GATEWAY")
	if address == "" {
		return nil
	}
	g := &gateway{url: strings.TrimRight(address, "/") + "/charges", ask: os.Getenv("EXECUTOR_GATEWAY_ASK") == "true", limit: time.Minute, stopping: stopping}
	if ms, err := strconv.Atoi(os.Getenv("EXECUTOR_GATEWAY_LIMIT_MS")); err == nil {
		g.limit = time.Duration(ms) * time.Millisecond
	}
	// The client follows no redirect, because it would turn a POST into a GET.
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

// charge charges once. If ctx or the process ends first, it returns the error of ctx or errStopping. A gateway with
// idempotency keys answers a request whose Idempotency-Key it has seen with its earlier answer. A gateway without
// them is first asked for a charge with the reference. unsure says that an earlier request may have had its effect
// although its answer was lost.
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

// send sends one request and returns whether the gateway has the charge; false if the gateway was asked and knows
// none. Any error other than errRejected leaves open whether the gateway has charged.
func (g *gateway) send(ctx context.Context, method, address, key string, body []byte) (charged bool, err error) {
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	if key != "" && !g.ask { // the key would make net/http repeat the request by itself
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
	default: // the answer says nothing about the charge, for example because of wrong credentials
		return false, errors.Join(fmt.Errorf("the gateway answers %d", status), err)
	}
}
