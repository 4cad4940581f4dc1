"""Prints one signed webhook of each provider as JSON, made by the provider's own SDK where there is one.

An SDK that only verifies has to accept what was made by the rule. Run by TestRealProviderSDKs; the output of one run is
requests.json, with those of sign.mjs after them. No secret here is or was in use.
"""

import base64
import hashlib
import hmac
import json
import sys
import time
from datetime import datetime, timedelta, timezone

NOW = int(sys.argv[1]) if len(sys.argv) > 1 else int(time.time())
SECRET = "a-secret-of-the-tests-0123456789"
WHSEC = "whsec_" + base64.b64encode(b"a secret of the tests, 32 bytes.").decode()
requests = []


def add(provider, maker, headers, body, *, secret=SECRET, unsigned="", changed=("first", "other"), query="", **more):
    """unsigned: the header with an id that is not signed. changed: a text of the body that is signed, and another one."""
    headers = {"Content-Type": "application/json", **headers}
    requests.append(dict(provider=provider, maker=maker, secret=secret, at=NOW, headers=headers, query=query, body=body,
                         unsigned=unsigned, changed=list(changed), **more))


def mac(text, digest=hashlib.sha256, secret=SECRET):
    return hmac.new(secret.encode(), text.encode(), digest)


def b64(digest):
    return base64.b64encode(digest).decode()


def rfc3339(seconds):
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def with_stripe():
    import stripe

    body = json.dumps({"id": "evt_1", "object": "event", "created": NOW, "type": "charge.succeeded", "data": {"object": {"description": "first"}}})
    secret = "whsec_of_the_tests_0123456789abcdef"
    signature = stripe.WebhookSignature._compute_signature(f"{NOW}.{body}", secret)
    header = f"t={NOW},v1={signature}"
    if NOW > time.time() - 60:
        stripe.Webhook.construct_event(body, header, secret)
    add("stripe", "stripe", {"Stripe-Signature": header}, body, secret=secret)


def with_github():
    add("github", "published", {"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
        "Hello, World!", secret="It's a Secret to Everybody", changed=("World", "Wor1d"))


def with_gitlab():
    body = '{"object_kind":"push","after":"first"}'
    add("gitlab", "token", {"X-Gitlab-Token": SECRET, "X-Gitlab-Event": "Push Hook", "Idempotency-Key": "f5e5f430-f57b-4e6e-9fac-d9128cd7232f"},
        body, unsigned="Idempotency-Key")


def with_standardwebhooks():
    from standardwebhooks.webhooks import Webhook

    at = datetime.fromtimestamp(NOW, timezone.utc)
    for provider in ("standard-webhooks", "gitlab-signed"):
        body = '{"type":"order.created","data":"first"}'
        headers = {"webhook-id": "msg_1", "webhook-timestamp": str(NOW), "webhook-signature": Webhook(WHSEC).sign("msg_1", at, body)}
        add(provider, "standardwebhooks", headers, body, secret=WHSEC)


def with_svix():
    from svix.webhooks import Webhook

    body = '{"type":"order.created","data":"first"}'
    headers = {"svix-id": "msg_1", "svix-timestamp": str(NOW), "svix-signature": Webhook(WHSEC).sign("msg_1", datetime.fromtimestamp(NOW, timezone.utc), body)}
    add("svix", "svix", headers, body, secret=WHSEC)


def with_slack():
    from slack_sdk.signature import SignatureVerifier

    sign = SignatureVerifier(SECRET).generate_signature
    body = '{"type":"event_callback","event_id":"Ev1","event":{"text":"first"}}'
    command = "command=%2Fdeploy&text=first&trigger_id=1.2"
    for content, kind in ((body, "application/json"), (command, "application/x-www-form-urlencoded")):
        add("slack", "slack-sdk", {"Content-Type": kind, "X-Slack-Request-Timestamp": str(NOW), "X-Slack-Retry-Num": "1",
                                   "X-Slack-Signature": sign(timestamp=str(NOW), body=content)}, content, unsigned="X-Slack-Retry-Num")
    hello = '{"type":"url_verification","token":"old","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}'
    add("slack", "slack-sdk", {"X-Slack-Request-Timestamp": str(NOW), "X-Slack-Signature": sign(timestamp=str(NOW), body=hello)}, hello,
        changed=("old", "new"), handshake={"status": 200, "body": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"})


def with_twilio():
    from twilio.request_validator import RequestValidator

    url = "https://hooks.example.com/twilio"
    validator = RequestValidator(SECRET)
    form = {"MessageSid": "SM1", "MessageStatus": "sent", "Body": "first \u20ac", "From": "+14158675310"}
    body = "MessageSid=SM1&MessageStatus=sent&From=%2B14158675310&Body=first+%E2%82%AC"
    add("twilio", "twilio", {"Content-Type": "application/x-www-form-urlencoded", "I-Twilio-Idempotency-Token": "token-1",
                             "X-Twilio-Signature": validator.compute_signature(url, form)}, body, unsigned="I-Twilio-Idempotency-Token")
    body = '{"sid":"first"}'
    query = "bodySHA256=" + hashlib.sha256(body.encode()).hexdigest()
    add("twilio", "twilio", {"I-Twilio-Idempotency-Token": "token-2", "X-Twilio-Signature": validator.compute_signature(f"{url}?{query}", {})}, body,
        query=query, unsigned="I-Twilio-Idempotency-Token")


def with_paypal():
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.x509.oid import NameOID
    from paypalrestsdk.notifications import WebhookEvent

    def certificate(name, key, issuer, issuer_key, ca):
        return (x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key()).serial_number(7 + ca)
                .not_valid_before(datetime(2024, 1, 1)).not_valid_after(datetime(2049, 1, 1))
                .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).sign(issuer_key, hashes.SHA256()))

    def named(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    root_key, key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    root = certificate(named("root of the tests"), root_key, named("root of the tests"), root_key, True)
    leaf = certificate(named("messages of the tests"), key, named("root of the tests"), root_key, False)
    pem = b"".join(c.public_bytes(serialization.Encoding.PEM) for c in (leaf, root)).decode()
    body = '{"id":"WH-1","event_type":"PAYMENT.CAPTURE.COMPLETED","summary":"first"}'
    signed = WebhookEvent._get_expected_sig("69cd13f0-d67a-11e5-baa3-778b53f4ae55", rfc3339(NOW), "1JE4291016473214C", body)
    signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    add("paypal", "paypalrestsdk", {"PAYPAL-TRANSMISSION-ID": "69cd13f0-d67a-11e5-baa3-778b53f4ae55", "PAYPAL-TRANSMISSION-TIME": rfc3339(NOW),
                                   "PAYPAL-CERT-URL": "https://api.paypal.com/v1/notifications/certs/CERT-1", "PAYPAL-AUTH-ALGO": "SHA256withRSA",
                                   "PAYPAL-TRANSMISSION-SIG": b64(signature)}, body, secret="1JE4291016473214C\n" + pem)


def with_square():
    from square.utils.webhooks_helper import verify_signature

    url = "https://hooks.example.com/square"
    body = json.dumps({"event_id": "6a8f5f28-54a1-4eb0-a98a-3111513fd4fc", "type": "payment.created", "created_at": rfc3339(NOW), "note": "first"})
    signature = b64(mac(url + body).digest())
    assert verify_signature(request_body=body, signature_header=signature, signature_key=SECRET, notification_url=url)
    add("square", "squareup", {"x-square-hmacsha256-signature": signature, "square-retry-number": "1"}, body, unsigned="square-retry-number")


def with_adyen():
    from Adyen.util import generate_notification_sig, is_valid_hmac_notification

    key = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
    item = {"pspReference": "7914073381342284", "originalReference": "", "merchantAccountCode": "TestMerchant", "merchantReference": "first:payment",
            "amount": {"value": 1130, "currency": "EUR"}, "eventCode": "AUTHORISATION", "success": "true", "eventDate": rfc3339(NOW)}
    item["additionalData"] = {"hmacSignature": generate_notification_sig(item, key).decode()}
    body = {"live": "false", "notificationItems": [{"NotificationRequestItem": item}]}
    assert is_valid_hmac_notification(body, key)
    add("adyen", "Adyen", {}, json.dumps(body), secret=key)


def with_meta():
    from pywa.utils import HUB_SIG, webhook_updates_validator

    body = '{"object":"page","entry":[{"id":"1","text":"first \\u00e4"}]}'
    signature = "sha256=" + mac(body).hexdigest()
    assert webhook_updates_validator(SECRET, body.encode(), signature)
    add("meta", "pywa", {HUB_SIG: signature}, body)


def with_discord():
    from discord_interactions import verify_key
    from nacl.signing import SigningKey

    key = SigningKey(b"a secret of the tests, 32 bytes.")
    public = key.verify_key.encode().hex()

    def add_signed(body, **more):
        signature = key.sign(str(NOW).encode() + body.encode()).signature.hex()
        assert verify_key(body.encode(), signature, str(NOW), public)
        add("discord", "PyNaCl", {"X-Signature-Ed25519": signature, "X-Signature-Timestamp": str(NOW)}, body, secret=public, **more)

    add_signed('{"id":"846462639134605312","type":2,"data":{"name":"first"}}')
    add_signed('{"version":1,"application_id":"1","type":1,"event":{"type":"APPLICATION_AUTHORIZED","timestamp":"first"}}')
    add_signed('{"id":"1","type":1}', changed=('"1"', '"2"'), handshake={"status": 200, "body": '{"type":1}'})
    add_signed('{"version":1,"application_id":"1","type":0}', changed=('"1"', '"2"'), handshake={"status": 204, "body": ""})


def with_telegram():
    add("telegram", "token", {"X-Telegram-Bot-Api-Secret-Token": SECRET}, '{"update_id":10000,"message":{"text":"first"}}')


def with_sendgrid():
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from sendgrid.helpers.eventwebhook import EventWebhook

    key = ec.generate_private_key(ec.SECP256R1())
    public = b64(key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    body = '[{"email":"hello@world.com","event":"dropped","sg_event_id":"first"}]\r\n'
    signature = b64(key.sign((str(NOW) + body).encode(), ec.ECDSA(hashes.SHA256())))
    assert EventWebhook(public).verify_signature(body, signature, str(NOW))
    add("sendgrid", "sendgrid", {"X-Twilio-Email-Event-Webhook-Signature": signature, "X-Twilio-Email-Event-Webhook-Timestamp": str(NOW)}, body, secret=public)


def with_paddle():
    from paddle_billing.Notifications import Secret, Verifier
    from paddle_billing.Notifications.PaddleSignature import PaddleSignature

    body = json.dumps({"event_id": "evt_01", "event_type": "transaction.completed", "occurred_at": rfc3339(NOW), "notification_id": "ntf_01", "note": "first"})
    header = f"ts={NOW};h1={PaddleSignature.calculate_hmac(SECRET, f'{NOW}:{body}'.encode()).hexdigest()}"

    class Request:
        headers = {"Paddle-Signature": header}

    Request.body = body.encode()
    assert Verifier().verify(Request(), Secret(SECRET), NOW > time.time() - 3)
    add("paddle", "paddle-python-sdk", {"Paddle-Signature": header}, body)


def with_coinbase():
    from coinbase_commerce.webhook import WebhookSignature

    body = json.dumps({"attempt_number": 1, "event": {"id": "24934862-d980-46cb-9402-43c81b0cdba6", "created_at": rfc3339(NOW), "type": "charge:created"}, "note": "first"})
    add("coinbase", "coinbase-commerce", {"X-CC-Webhook-Signature": WebhookSignature._compute_signature(body, SECRET)}, body)


def with_coinbase_cdp():
    from hook0.signature import verify_webhook_signature_with_current_time as verify

    ids = {"x-event-id": "123e4567-e89b-12d3-a456-426614174000", "x-event-type": "wallet.activity.detected"}
    wallet = json.dumps({"eventId": ids["x-event-id"], "eventType": ids["x-event-type"], "timestamp": rfc3339(NOW), "data": {"network": "first"}})
    onchain = json.dumps({"transaction_hash": "0xa58e", "log_index": 29, "network": "first", "timestamp": rfc3339(NOW)})
    for body in wallet, onchain:
        headers = {"content-type": "application/json", **ids}
        signed = f"{NOW}.{' '.join(headers)}.{'.'.join(headers.values())}.{body}"
        headers["X-Hook0-Signature"] = f"t={NOW},v0={mac(f'{NOW}.{body}').hexdigest()},h=content-type x-event-id x-event-type,v1={mac(signed).hexdigest()}"
        assert verify(headers["X-Hook0-Signature"], body.encode(), headers, SECRET, 300, datetime.fromtimestamp(NOW, timezone.utc))
        headers["Content-Type"] = headers.pop("content-type")
        add("coinbase-cdp", "hook0-client", headers, body)


def with_jira():
    add("jira", "published", {"X-Hub-Signature": "sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9",
                              "X-Atlassian-Webhook-Identifier": "id-1"}, "Hello World!", secret="It's a Secret to Everybody", changed=("World", "Wor1d"),
        unsigned="X-Atlassian-Webhook-Identifier")


def with_tradingview():
    add("tradingview", "token", {}, '{"ticker":"BTCUSD","time":"first"}', query="token=" + SECRET)


for make in list(globals().values()):
    if getattr(make, "__name__", "").startswith("with_"):
        make()
print(json.dumps(requests, indent=1))
