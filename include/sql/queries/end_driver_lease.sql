UPDATE stream_driver SET ended_at = now()
 WHERE application = %(application)s AND epoch = %(epoch)s AND driver_id = %(driver_id)s
