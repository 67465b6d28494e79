# SPDX-License-Identifier: Apache-2.0
"""S3's XML documents, read and written by s3.py."""

import time
import xml.etree.ElementTree as ElementTree
from urllib.parse import quote_plus

from sigv4 import Refused

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def escape(text):
    """Escape text.  S3 writes references to control characters, against XML 1.0."""
    special = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
    return "".join(special.get(c) or (f"&#x{ord(c):x};" if ord(c) < 32 else c)
                   for c in str(text))


def element(name, value):
    """value: text, or a list of (name, value)."""
    if isinstance(value, list):
        return f"<{name}>" + "".join(element(*each) for each in value) + f"</{name}>"
    return f"<{name}>{escape(value)}</{name}>"


def document(name, children, namespace=True):
    attribute = f' xmlns="{NAMESPACE}"' if namespace else ""
    inner = "".join(element(*each) for each in children)
    return (f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}{attribute}>'
            f"{inner}</{name}>").encode()


def error(code, message, fields):
    return document("Error", [("Code", code), ("Message", message), *fields.items()],
                    namespace=False)


def timestamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def parse(body, root):
    """Parse a document and return the root element, without namespaces."""
    try:
        tree = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        tree = None
    if tree is not None:
        for each in tree.iter():
            each.tag = each.tag.rpartition("}")[2]
    if tree is None or tree.tag != root:
        raise Refused(400, "MalformedXML", "The XML you provided was not well-formed or "
                      "did not validate against our published schema")
    return tree


def listing(bucket, params, objects, cut, token):
    """Return a page of ListObjectsV2.  objects: (key, object); token: of the next page."""
    encode = params.get("encoding-type") == "url"
    show = (lambda text: quote_plus(text, safe="/")) if encode else (lambda text: text)
    children = [("Name", bucket), ("Prefix", show(params.get("prefix", ""))),
                ("KeyCount", len(objects)), ("MaxKeys", params.get("max-keys", 1000)),
                ("IsTruncated", "true" if cut else "false")]
    if encode:
        children.append(("EncodingType", "url"))
    if "continuation-token" in params:
        children.append(("ContinuationToken", params["continuation-token"]))
    if cut:
        children.append(("NextContinuationToken", token))
    for key, each in objects:
        children.append(("Contents", [
            ("Key", show(key)), ("LastModified", timestamp(each.modified)),
            ("ETag", f'"{each.etag}"'), ("Size", len(each.body)),
            ("StorageClass", each.headers.get("x-amz-storage-class", "STANDARD"))]))
    return document("ListBucketResult", children)
